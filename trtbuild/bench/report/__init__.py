"""bench.json and what is made from it: a plain table, Markdown, CSV and a self-contained HTML page."""
