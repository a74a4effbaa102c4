"""Networks: what an agent acts with and an embryo trains."""
