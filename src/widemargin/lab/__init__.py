"""`widemargin lab`: losses to choose, numbers to move, one page that opens offline; every curve from the margins."""
