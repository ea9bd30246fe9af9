"""Tables from files and by name, with every rule about what is read, left out or refused."""
