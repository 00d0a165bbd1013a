"""Captions over HTTP: a page for people and an API for programs.

    socket ─▶ protocol (time limits) ─▶ guard (access, logging) ─▶ app (routes) ─▶ service
    service: uploads (body → pictures and options) ─▶ batching (one call of the model for many) ─▶ JSON

Start at `app.py` for the routes, `batching.py` for how requests share the model, `server.py` for starting and stopping.
"""
