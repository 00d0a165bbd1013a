"""Captions over HTTP: a page for people, an API for programs, both safe to leave running.

    socket ─▶ protocol (time limits) ─▶ guard (who may, what is logged) ─▶ app (routes) ─▶ service
    service: uploads (body → picture and options, in a thread) ─▶ batching (one call of the model for all) ─▶ JSON

Start at `app.py` for the routes, `batching.py` for how requests share the model, `server.py` for starting and stopping.
"""
