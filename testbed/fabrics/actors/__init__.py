"""Roles as Ray actors with real sockets between them; what an emulated, and any other real, network is played on."""
