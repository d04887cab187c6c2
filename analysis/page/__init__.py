"""The page of `holmes report`: its tables, drawings, style and script, all in one file that fetches nothing."""
