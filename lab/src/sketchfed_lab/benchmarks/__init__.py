"""Speed, measured as ratios to peers in the same run. A benchmark is a module with `main(folder=..., quick=...)`."""

BENCHMARKS = {
    name: f"sketchfed_lab.benchmarks.{name}"
    for name in (
        "kernels",
        "rounds",
        "mean",
        "privacy",
        "secure",
        "layers",
        "dome",
        "scale",
        "federation",
        "versions",
        "models",
        "ranks",
    )
}
