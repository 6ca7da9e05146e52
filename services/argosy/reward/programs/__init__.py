"""Programs in responses, and the verdict on them: `blocks` finds the one to run, `tests` reads a row's hidden tests,
`judge` runs it in `argosy.sandbox` and compares what it printed or claimed with what was expected (`compare`)."""
