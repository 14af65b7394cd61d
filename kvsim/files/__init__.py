"""Helpers for files of any content, which are read with bounds and written completely or not at all.

contents                      read untrusted files
arrow_columns, arrow_table    columns and tables of pyarrow
parquet_footer                the declared sizes of a Parquet file, before it is read
scratch, atomic               files and folders that get their name when they are complete
values                        TOML documents, and checks of values
overwriting                   rules for replacing existing files
eventline                     one event of a log as a line
"""
