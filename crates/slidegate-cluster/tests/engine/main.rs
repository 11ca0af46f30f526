//! The promises of the engine, each by itself: engines over plain maps, and a network in which every frame goes where
//! the test wants it to.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod acknowledging;
mod joining;
mod map;
mod rig;
mod silence;
mod telling;
