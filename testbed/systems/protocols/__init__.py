"""What training systems share: what a system is, the baseline's protocol with any codec, regional copies, rounds."""
