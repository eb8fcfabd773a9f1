"""The page over HTTP: routes, the API, live updates, and private pages.

The files, each built on those above it:

    free_port.py            checks that the page's port is free
    log_limits.py           limits log lines about strangers to one for each kind and minute
    page_access.py          the token of a private page
    connection_bound.py     limit on connections and event streams
    api_queries.py          self-checking queries of the API, and its OpenAPI document
    contributor_search.py   contributors that match a query
    live_updates.py         one rendered snapshot for all viewers
    handler_context.py      shared state of the handlers; answers made once for each observation
    middleware.py           access, security headers, errors as answers
    metrics.py              metrics for Prometheus
    api_answers.py          the API's answers: the read model
    api_routes.py           the API over HTTP, and proofs
    person_routes.py        pages about one person, preview pictures for links
    live_stream.py          live updates over HTTP; a viewer that reads too slowly is cut off
    routes.py               page, assets, health

Source: problem details (RFC 9457) for refusals of the API.
"""
