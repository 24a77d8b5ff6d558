"""What searches over points share: one grid, one ledger, one clock."""
