"""For those who measure: transports, profiles, scaling, staleness, and a model of how fast a job can go.

Only the commands `bench` and `profile` of ``tianji_cli`` know it, and import it when they are called.
"""
