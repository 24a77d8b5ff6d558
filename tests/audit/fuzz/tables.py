"""All cases. A table of one's own is a module with `cases()`, listed here."""

from tests.audit.fuzz import (
  conversions,
  draft_heads,
  families,
  flags,
  places,
  row_files,
  settings,
  texts,
)
from tests.audit.fuzz.case import Case

TABLES = (
  conversions,
  draft_heads,
  families,
  flags,
  places,
  settings,
  texts,
  row_files,
)


def cases() -> list[Case]:
  """Returns the cases of all tables."""
  return [case for table in TABLES for case in table.cases()]
