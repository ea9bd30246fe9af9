"""Data: tables and images, downloaded, read within bounds, checked."""
