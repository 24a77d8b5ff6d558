"""The report: tables, figures and a page, of result rows alone."""
