"""A local web page on a gallery: identify, compare, enrol and browse in a browser."""
