"""Programs of anybody's on the emulated WAN: started on its hosts, watched, recorded."""
