"""What a run came to, as numbers: summaries with their intervals, comparisons, traffic, prices, tables, sentences."""
