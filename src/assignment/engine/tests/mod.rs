//! Exact command lists: an engine is told what happened and must answer with these commands and no others.

mod calls;
mod explain;
mod forecast;
mod handoff;
mod leadership;
mod moves;
mod notes;
mod pause;
mod removal;
mod rig;
mod rolling;
