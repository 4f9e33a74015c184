//! A leader cell whose file has any content. The first word says what is done with the cell where it is taken.

use super::input::Input;
use super::scratch::Scratch;
use crate::election::host::cell::{Claimed, FILE_BYTES, LeaderCell, Reason, Refused};

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (how, grace, length) = (input.byte(), input.byte(), input.short());
    let mut content = input.rest().to_vec();
    if how & 1 != 0 {
        // Most inputs are shorter than a cell, and a cell of any other length is refused at once.
        content.resize(FILE_BYTES as usize, 0);
    } else if how & 2 != 0 {
        content.resize(usize::from(length), 0);
    }
    let scratch = Scratch::new(&content);
    let path = scratch.path();
    let opened = if how & 4 != 0 { LeaderCell::open(path) } else { LeaderCell::create(path) };
    let cell = match opened {
        Ok(cell) => cell.with_preemption(how & 8 != 0),
        Err(error) => {
            let why = error.why;
            assert!(matches!(why, Reason::Length(_) | Reason::Foreign(_) | Reason::Version(_)), "{why}");
            assert_eq!(std::fs::read(path).unwrap(), content, "what is refused is left as it is");
            return;
        }
    };
    let is_new = content.is_empty() || content.iter().enumerate().all(|(at, byte)| *byte == 0 || (8..16).contains(&at));
    assert!(is_new || content.len() as u64 == FILE_BYTES, "{} bytes are no cell", content.len());
    let term = cell.election_term();
    assert!(!is_new || (term == 0 && cell.current_leader().is_none()));
    if let Some(leader) = cell.current_leader() {
        assert_ne!(leader.claim.pid(), 0);
        assert_eq!(leader.claim.term(), term);
        assert!(leader.text.as_ref().is_none_or(|text| text.len() <= 512));
        assert!(!leader.to_string().is_empty());
    }
    cell.tick();
    let own = std::process::id();
    match cell.try_claim(own, u64::from(grace)) {
        Ok(Claimed::Won(claim, _)) => {
            assert_eq!((claim.pid(), claim.term()), (own, term + 1));
            assert!(cell.is_held_by(claim) && cell.ticks_behind(claim) == 0);
            assert!(matches!(cell.try_claim(own, 0), Ok(Claimed::Already(same)) if same == claim));
            cell.describe(claim, "process of a test");
            let leader = cell.current_leader().expect("it was claimed");
            assert_eq!(leader.text.as_deref(), Some("process of a test"));
            cell.step_down(claim).expect("it is held");
            assert!(cell.beat(claim).is_err() && cell.current_leader().is_none());
        }
        Ok(Claimed::Already(claim)) => assert_eq!((claim.pid(), claim.term()), (own, term)),
        Err(Refused::Held(leader)) => assert_eq!(leader.claim.term(), term),
        Err(Refused::Exhausted) => {}
        Err(Refused::Claimant { pid, source }) => panic!("this very process {pid} may claim it: {source:?}"),
    }
}
