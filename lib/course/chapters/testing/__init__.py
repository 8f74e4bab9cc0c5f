"""The chapter *Testing*: runs with a planted fault."""
