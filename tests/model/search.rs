//! Breadth first through every world that can come to be, so that what breaks is found by the fewest steps.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::guards::Guard;
use crate::scopes::Bounds;
use crate::world::{Memo, Scene, World};

/// What was found.
pub struct Report {
    /// Worlds that are different.
    pub worlds: usize,
    /// Steps from one to another.
    pub steps: usize,
    /// The most steps that it takes to come to one of them.
    pub depth: usize,
    /// What happened, and how often.
    pub reached: HashMap<&'static str, u64>,
    pub found: Option<Found>,
}

/// A broken promise, and the shortest way there.
pub struct Found {
    pub what: Vec<String>,
    pub trace: Vec<String>,
}

/// Looks at everything within bounds, until a promise breaks.
///
/// # Panics
/// Where there are more than `most` worlds: then nothing was shown.
pub fn search(scene: Scene, bounds: Bounds, guard: Option<Guard>, most: usize) -> Report {
    let mut memo = Memo::without(guard);
    let start = World::at(scene, bounds, &mut memo);
    // From which one, by which of its actions.
    let mut known: HashMap<u64, (u64, u16)> = HashMap::from([(start.print(), (0, 0))]);
    let mut layer = vec![start.clone()];
    let (mut steps, mut depth, mut found) = (0, 0, None);
    'search: while !layer.is_empty() {
        let mut next = Vec::new();
        for world in layer {
            let print = world.print();
            for (number, action) in world.actions(&memo).iter().enumerate() {
                steps += 1;
                let after = world.after(action, &mut memo);
                let Entry::Vacant(entry) = known.entry(after.print()) else { continue };
                entry.insert((print, number as u16));
                if !after.broken.is_empty() {
                    found = Some((after.print(), after.broken));
                    break 'search;
                }
                next.push(after);
            }
            assert!(known.len() <= most, "more than {most} worlds within {bounds:?}: nothing was shown");
        }
        depth += usize::from(!next.is_empty());
        layer = next;
    }
    let reached = memo.reached.clone();
    let found = found.map(|(print, what)| Found { what, trace: trace(start, print, &known, &mut memo) });
    Report { worlds: known.len(), steps, depth, reached, found }
}

/// The way from the start to a world, by going back from there.
fn trace(start: World, mut print: u64, known: &HashMap<u64, (u64, u16)>, memo: &mut Memo) -> Vec<String> {
    let mut way = Vec::new();
    while print != start.print() {
        let (from, number) = known[&print];
        way.push(number);
        print = from;
    }
    let (mut world, mut lines) = (start, Vec::new());
    for number in way.into_iter().rev() {
        let action = world.actions(memo).swap_remove(usize::from(number));
        lines.push(format!("{:>3}. tick {:>2}: {action}", lines.len() + 1, world.clock.tick));
        world = world.after(&action, memo);
    }
    lines
}
