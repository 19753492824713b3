"""Large-model support: swap edges by rule, its grid of parameters, its peak."""
