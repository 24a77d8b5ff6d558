"""The report: tables, figures and a page that are made from result rows."""
