// Counts in Redis with slidegate's script `check.lua`, without a slidegate server, and shares the counters of
//
//     slidegate serve --store redis://…
//
// for this rule (docs/reference/redis-wire-format.md documents the keys, the argument and the reply of the script):
//
//     rules: [{ name: per-client, per: [client], limits: [5/h] }]
//
//     npm install redis
//     slidegate lua --out lua
//     node limit.mjs lua redis://127.0.0.1/ sliding_window alice [number of requests]
import { readFileSync } from 'node:fs'
import { isIPv6 } from 'node:net'
import { join } from 'node:path'
import { createClient, defineScript } from 'redis'

// The end of the key of a limit of an hour, by its algorithm.
const KEY_ENDS = { sliding_window: ':log', sliding_log: ':1h:sliding_log:1h', sliding_counter: '' }

const escape = (text) => encodeURIComponent(text)
  .replace(/[!*'()]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`)
  .replace(/%(2F|40|2B|3A)/g, decodeURIComponent)

// Returns a value of `per` as a server writes it in the key: an IPv6 address as its network, any other text escaped.
function keyValue(value) {
  if (Buffer.byteLength(value) > 400) throw new Error('a server may shorten a value of more than 400 bytes; send a hash of it')
  if (!isIPv6(value) || value.includes('%')) return escape(value)
  // Shortens the text and converts a dotted end, such as ::ffff:192.0.2.7.
  const address = new URL(`http://[${value}]`).hostname.slice(1, -1)
  const [before, after = ''] = address.split('::').map((half) => half.split(':').filter(Boolean))
  const groups = [...before, ...Array(8 - before.length - after.length).fill('0'), ...after].map((group) => parseInt(group, 16))
  if (groups.slice(0, 5).every((group) => group === 0) && groups[5] === 0xffff) {
    return [groups[6] >> 8, groups[6] & 255, groups[7] >> 8, groups[7] & 255].join('.')
  }
  const network = groups.map((group, nth) => (nth < 4 ? group : 0).toString(16)).join(':')
  return `(${new URL(`http://[${network}]`).hostname.slice(1, -1)}/64)`
}

// Requests one unit, and returns the reply of the script.
async function take(connection, algorithm, client) {
  const key = `slidegate:default:per-client:{client=${keyValue(client)}}${KEY_ENDS[algorithm]}`
  const limit = { algorithm, max: 5, window_ms: 3_600_000 }
  return JSON.parse(await connection.check(key, JSON.stringify({ limits: [limit] })))
}

const [folder, address, algorithm, client, times = 1] = process.argv.slice(2)
// The client sends EVALSHA, and the text of the script only if Redis does not have it.
const check = defineScript({
  SCRIPT: readFileSync(join(folder, 'check.lua'), 'utf8'),
  NUMBER_OF_KEYS: 1,
  parseCommand(parser, key, argument) {
    parser.pushKey(key)
    parser.push(argument)
  },
})
const connection = createClient({ url: address, scripts: { check } })
await connection.connect()
for (let nth = 0; nth < times; nth++) {
  const { allowed, remaining, retry_after_ms } = await take(connection, algorithm, client)
  console.log(allowed ? `allowed, ${remaining} left` : `denied, try again in ${(retry_after_ms / 1000).toFixed(3)} s`)
}
connection.destroy()
