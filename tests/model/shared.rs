//! Parts of a world, each kept once however many worlds have it, and told apart by a print.

use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Debug, Write};
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::rc::Rc;

/// A part, and the print of everything that it is.
pub struct Shared<T> {
    print: u64,
    part: Rc<T>,
}

impl<T: Debug> Shared<T> {
    pub fn new(part: T) -> Shared<T> {
        Shared { print: print_of(&part), part: Rc::new(part) }
    }
}

impl<T> Shared<T> {
    pub fn print(&self) -> u64 {
        self.print
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared { print: self.print, part: Rc::clone(&self.part) }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.part
    }
}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.print);
    }
}

impl<T: Debug> Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part.fmt(f)
    }
}

/// Of everything that `Debug` shows. Two values with one print count as one: with some million values, the chance that two different
/// ones have the same is below one to a million.
pub fn print_of(value: &impl Debug) -> u64 {
    struct Printer(DefaultHasher);
    impl Write for Printer {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut printer = Printer(DefaultHasher::new());
    write!(printer, "{value:?}").expect("hashing does not fail");
    printer.0.finish()
}
