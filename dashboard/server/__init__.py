"""The page over HTTP: routes, the API, live updates, private pages, and limits on who may hold a connection.

The files, each built on those above it:

    doors.py        who may hold a connection to the page, and how many requests an address may send
    choices.py      what whoever runs a dashboard may choose
    quiet_log.py    one line of the log per kind and minute for what strangers cause
    api.py          the API's answers as JSON
    api_schema.py   what the API takes and gives: checks queries, describes itself as OpenAPI
    exporting.py    CSV and JSON lines
    live.py         one rendered snapshot for all viewers
    page_access.py  the token of a private page
    metrics.py      figures for Prometheus
    site.py         what the handlers share; answers made once per look
    api_routes.py   the API over HTTP
    routes.py       page, events, health

Source: problem details (RFC 9457) for refusals of the API.
"""
