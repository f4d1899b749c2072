"""Run roles in this process or on Ray. No other folder of the package imports Ray."""
