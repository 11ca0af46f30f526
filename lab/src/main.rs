use slidegate::*;
use std::time::Instant;
use std::hint::black_box;
#[allow(clippy::disallowed_methods)]
fn main() {
    let n: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let limiter = Limiter::new(["1/w"]).unwrap();
    let keys: Vec<String> = (0..n).map(|i| format!("tenant:{:013}", i)).collect();
    let mut rng = fastrand::Rng::with_seed(1);
    let order: Vec<u32> = (0..4_000_000).map(|_| rng.u32(0..n as u32)).collect();
    for k in &keys { if rng.bool() { black_box(limiter.check(k.as_str())); } else { black_box(limiter.peek(k.as_str(),1)); } }
    let rss = std::fs::read_to_string("/proc/self/statm").unwrap(); println!("{rss}");
    for _ in 0..3 {
    let t = Instant::now();
    let mut a = 0;
    for &i in &order { a += limiter.check(keys[i as usize].as_str()).is_allowed() as u32; }
    println!("check {:.1} ns allowed {}", t.elapsed().as_nanos() as f64 / order.len() as f64, a);
    let t = Instant::now();
    let mut a = 0;
    for c in order.chunks(16) { let ks: [&str;16] = std::array::from_fn(|j| keys[c[j] as usize].as_str()); a += limiter.check_many(&ks).iter().filter(|v| v.is_allowed()).count(); }
    println!("many {:.1} ns allowed {}", t.elapsed().as_nanos() as f64 / order.len() as f64, a);
    }
}
