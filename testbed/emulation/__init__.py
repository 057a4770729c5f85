"""The emulated network: Mininet in namespaces of one's own, HTB, and netem or a delay line.

- `sandbox` runs a command in its own namespaces, as root or as an ordinary user;
- `network` builds a `NetworkPlan` with Mininet, reads it back, counts bytes and changes rates;
- `topo` holds the Mininet node, link and topology classes, also for plain `mn --custom`;
- `links` decides how one direction of a link is shaped, and speaks netlink;
- `awake` keeps an idle virtual machine's cores from halting, or timers come late;
- `delay` puts propagation delay on the wires; `netns` enters a namespace; `mnexec` stands in for Mininet's helper.

Nothing here is imported by the package itself: `mininet` and `pyroute2` are needed only where it is used.
"""
