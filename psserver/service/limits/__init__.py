"""What peers may cost a server: time and threads that their calls take."""
