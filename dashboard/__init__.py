"""What happened in a run, for people: an observer of the swarm and a web page about what it saw.

    dashboard/observe/observer.py   looks at the DHT every few seconds; announces nothing, trains nothing
    dashboard/observe/state.py      pure fold of what was seen into `DashboardState`
    dashboard/server/api.py        the state as JSON: /api/v1/{run,peers,rounds}
    dashboard/page/page.py       the state as HTML, one section at a time
    dashboard/page/chart.py      the loss curves as SVG
    dashboard/server/live.py       one rendered snapshot shared by all viewers; server-sent events
    dashboard/server/routes.py     the aiohttp application: page, events, API
    app.py        `serve_dashboard` puts everything together
    web/          the page's style, script and icon

Everything shown comes from strangers: it is bounded in number, stripped of what does not print, and escaped.
"""
