"""The emulated fabric: a Ray actor per role, each on its own Mininet host, every message over emulated links."""
