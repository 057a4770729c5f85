"""The experiment file: `schema` says what is in it, `load` reads, `strict` refuses, `assembly` builds its parts."""
