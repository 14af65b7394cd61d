"""Files of any kind: read with bounds, and written completely or not at all. Nothing here knows the content of a file.

contents                      read untrusted files
arrow_columns, arrow_table    columns and tables of pyarrow
parquet_footer                the declared sizes of a Parquet file, before it is read
scratch, atomic               files and folders that appear under their name once complete
values                        TOML documents, and checks of values
overwriting                   rules for replacing existing files
eventline                     one event of a log as a line
"""
