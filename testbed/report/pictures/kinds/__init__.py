"""The kinds of pictures, one file each; `testbed.report.pictures.registry` finds them."""
