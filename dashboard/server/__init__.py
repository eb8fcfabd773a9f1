"""The page over HTTP: routes, the API, live updates, and private pages.

The files, each built on those above it:

    free_port.py            whether a page can have its place
    log_limits.py           one line of the log for each kind of fault of strangers and minute
    page_access.py          the token of a private page
    connection_bound.py     how many connections and event streams the server holds
    api_queries.py          what the API takes: queries check themselves; and its OpenAPI document
    contributor_search.py   which contributors a query asks for
    live_updates.py         one rendered snapshot for all viewers
    handler_context.py      what the handlers share; answers made once per look
    middleware.py           who may read, security headers, faults as answers
    metrics.py              figures for Prometheus
    api_answers.py          what the API gives: the read model
    api_routes.py           the API over HTTP, and proofs
    person_routes.py        addresses about one person, cards for links
    live_stream.py          live updates over HTTP; a viewer that reads too slowly is cut off
    routes.py               page, assets, health

Source: problem details (RFC 9457) for refusals of the API.
"""
