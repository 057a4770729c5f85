"""The wide-area network as data: profiles (rates and delays per region pair) and the plan of a run's hosts."""
