"""What a device other than the CPU needs: moves that do not wait, work that is launched as one, errors read late.

A GPU runs behind the program that feeds it. It stays fed as long as nothing on the way of a step asks it for a value,
and as long as it is given few things to start. So everything here serves three rules:

1. What goes up goes without waiting (`moves.upload`); what must come down comes in one transfer (`moves.numbers`).
2. What is computed the same way step after step is captured once and launched whole (`graphs.captured`).
3. What may be wrong with a value is noted on the device, and read when values are read anyway (`doubts`).

`standin` is a device for machines without one, on which all of this runs and is counted.
"""
