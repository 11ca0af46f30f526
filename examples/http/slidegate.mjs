// A client of slidegate for Node: one attempt within a budget, and a circuit breaker.

const MAX_FAILURES = 3
const OPEN_MS = 1000

// Returns a function that checks requests. `allowOnFailure` is the decision while slidegate does not decide.
export function limiter({ url = 'http://localhost:8080', budgetMs = 100, allowOnFailure = true } = {}) {
  let failures = 0
  let openUntil = 0
  const failed = (reason) =>
    ({ allowed: allowOnFailure, status: allowOnFailure ? 200 : 503, reason, retry_after_ms: null, headers: {} })

  return async function check(attributes, cost = 1) {
    const now = performance.now()
    if (now < openUntil) return failed('breaker_open')
    // While a check tests whether slidegate responds again, the others do not wait for it.
    if (failures >= MAX_FAILURES) openUntil = now + OPEN_MS
    try {
      const body = JSON.stringify({ attributes, cost })
      const signal = AbortSignal.timeout(budgetMs)
      const response = await fetch(`${url}/v1/check`, { method: 'POST', body, signal })
      const decision = await response.json()
      const invalid = decision.allowed === undefined
      if (invalid && response.status >= 500) throw new Error(decision.detail)
      failures = openUntil = 0
      if (invalid) {
        console.error(`the check is invalid: ${decision.detail}`)
        return { allowed: false, status: 500, reason: 'invalid_check', headers: {} }
      }
      const isCopied = ([name]) => /^(x-)?ratelimit|^(retry-after|cache-control)$/.test(name)
      const headers = Object.fromEntries([...response.headers].filter(isCopied))
      return { ...decision, status: response.status, headers }
    } catch (error) {
      failures += 1
      if (failures >= MAX_FAILURES) openUntil = performance.now() + OPEN_MS
      console.warn(`slidegate does not decide: ${error.message}`)
      return failed('slidegate_failed')
    }
  }
}

// Express middleware: copies the headers of the decision, and responds to denied requests.
export function middleware(check, attributesOf) {
  return async (request, response, next) => {
    const decision = await check(attributesOf(request))
    response.set(decision.headers)
    if (decision.allowed) return next()
    response.status(decision.status).json({ status: decision.status, reason: decision.reason })
  }
}
