"""Files of any kind: read with bounds, and written whole or not at all. Nothing here knows what stands in a file.

contents                      reading files that may be anything
arrow_columns, arrow_table    columns and tables of pyarrow
parquet_footer                what a Parquet file declares, before it is read
scratch, atomic               a file or folder that appears under its name when it is whole
overwriting                   whether a command may write where something stands already
eventline                     one event of a growing recording as a line
"""
