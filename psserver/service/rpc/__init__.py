"""The gRPC services, one file each, and the adapters between wire types and our own."""
