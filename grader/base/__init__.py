"""What every room may use and what itself uses no room."""
