"""Does the emulated network do what its profile says? Measured inside the run's own sandbox, link by link.

- `values` holds what was asked, what was measured and the bound between them, and writes tables of it;
- `probes` measures: message times, goodput, round trips; `load` keeps every core busy meanwhile,
  and `threads` use several links at once;
- `gate` is the short check before every emulated run;
- `measure` is the long one, `testbed fidelity`, with `goodput` and `messages`;
- `against` compares with the virtual network message by message, `steps` by whole systems' steps; `speed` tells how
  fast that network is;
- `report` writes it down.
"""
