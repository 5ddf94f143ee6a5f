"""HTTP: the native API and the protocols of front ends, as mountable routes and as one application.

Needs the extra ``server``. Nothing is kept in the process: any replica may answer any request.
"""
