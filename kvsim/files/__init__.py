"""Helpers for files of any content. Files are read with a size limit, and written completely or not at all.

contents                      read untrusted files
arrow_columns, arrow_table    columns and tables of pyarrow
parquet_footer                the declared sizes of a Parquet file, before it is read
json_text, values             JSON texts; TOML documents, and checks of values
scratch, atomic               files and folders that get their name when they are complete
marks, identity               signs in files and recordings by which kvsim finds its own, unchanged output
overwriting                   rules for replacing existing files
eventline                     one event of a log as a line
"""
