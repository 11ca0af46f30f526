"""A client of slidegate: one attempt within a budget, and a circuit breaker. The standard library is sufficient."""

import http.client, json, logging, threading, time

MAX_FAILURES = 3
OPEN_S = 1.0
COPIED = ("ratelimit", "x-ratelimit", "retry-after", "cache-control")


class Limiter:
    """Checks requests. `allow_on_failure` is the decision while slidegate does not decide."""

    def __init__(self, address="localhost:8080", budget_s=0.1, allow_on_failure=True):
        self.address, self.budget_s, self.allow_on_failure = address, budget_s, allow_on_failure
        self.connections = threading.local()  # one connection per thread
        self.lock = threading.Lock()
        self.failures = self.open_until = 0

    def check(self, attributes, cost=1):
        """Returns the decision: `allowed`, `status`, `reason`, and `headers` for the response to the client."""
        if not self._may_call():
            return self._failed("breaker_open")
        present = {name: value for name, value in attributes.items() if value is not None}
        try:
            status, headers, decision = self._send(json.dumps({"attributes": present, "cost": cost}))
            if "allowed" not in decision and status >= 500:
                raise ValueError(decision.get("detail"))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._record(succeeded=False)
            logging.warning("slidegate does not decide: %r", error)
            return self._failed("slidegate_failed")
        self._record(succeeded=True)
        if "allowed" not in decision:
            logging.error("the check is invalid: %s", decision.get("detail"))
            return {"allowed": False, "status": 500, "reason": "invalid_check", "headers": {}}
        copied = {name: value for name, value in headers if name.lower().startswith(COPIED)}
        return {**decision, "status": status, "headers": copied}

    def _send(self, body):
        is_reused = hasattr(self.connections, "own")
        if not is_reused:
            self.connections.own = http.client.HTTPConnection(self.address, timeout=self.budget_s)
        connection = self.connections.own
        try:
            connection.request("POST", "/v1/check", body)
            response = connection.getresponse()
            return response.status, response.getheaders(), json.loads(response.read())
        except Exception as error:
            connection.close()
            del self.connections.own
            if is_reused and isinstance(error, ConnectionError):  # it was closed while idle
                return self._send(body)
            raise

    def _may_call(self):
        with self.lock:
            now = time.monotonic()
            if now < self.open_until:
                return False
            if self.failures >= MAX_FAILURES:  # one check tests whether slidegate responds again
                self.open_until = now + OPEN_S
            return True

    def _record(self, succeeded):
        with self.lock:
            self.failures = 0 if succeeded else self.failures + 1
            self.open_until = time.monotonic() + OPEN_S if self.failures >= MAX_FAILURES else 0

    def _failed(self, reason):
        status = 200 if self.allow_on_failure else 503
        return {"allowed": self.allow_on_failure, "status": status, "reason": reason,
                "retry_after_ms": None, "headers": {}}
