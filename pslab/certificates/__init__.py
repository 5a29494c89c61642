"""A folder of certificates for the processes of one cluster: `ps-lab certs`."""
